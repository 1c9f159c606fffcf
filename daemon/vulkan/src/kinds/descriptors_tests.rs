//! Tests of the descriptors that sets are taken to hold.

use super::*;

const BUFFERS: DescriptorType = DescriptorType::STORAGE_BUFFER;

fn facts(bindings: &[(u32, DescriptorType, u32)]) -> SetFacts {
    let binding = |&(number, ty, count): &_| {
        let (stages, immutable_samplers, flags) = (0, false, 0);
        Binding { number, ty, count, stages, immutable_samplers, flags }
    };
    SetFacts { bindings: bindings.iter().map(binding).collect(), dynamic: 0, push: false }
}

/// Writes buffers with these ids.
fn write(contents: &mut Contents, facts: &SetFacts, binding: u32, element: u32, ids: &[u64]) {
    let info = |id: &u64| venus::DescriptorBufferInfo { buffer: venus::Buffer(*id), offset: 4, range: 8 };
    let infos: Vec<_> = ids.iter().map(info).collect();
    let write = venus::WriteDescriptorSet {
        dst_binding: binding,
        dst_array_element: element,
        descriptor_count: ids.len() as u32,
        descriptor_type: BUFFERS,
        p_buffer_info: Some(&infos),
        ..Default::default()
    };
    contents.write(facts, 0, &write);
}

/// The ids in each binding, 0 for a descriptor that was never written.
fn ids(contents: &Contents, facts: &SetFacts) -> Vec<Vec<u64>> {
    let all = contents.bindings(facts).map(|(_, held)| match held {
        Held::Descriptors(held) => held.iter().map(|descriptor| descriptor.words[0]).collect(),
        Held::Bytes(bytes) => bytes.iter().map(|byte| u64::from(*byte)).collect(),
    });
    all.collect()
}

#[test]
fn descriptors_take_no_more_than_their_words() {
    assert_eq!(size_of::<Descriptor>(), 32);
    let contents = Contents::default();
    assert!(ids(&contents, &facts(&[(0, BUFFERS, 1 << 24)])).is_empty());
}

#[test]
fn what_is_more_than_a_binding_has_goes_into_the_next() {
    // Numbers with gaps, and a binding of none between.
    let facts = facts(&[(0, BUFFERS, 2), (3, BUFFERS, 0), (4, BUFFERS, 3), (9, BUFFERS, 2)]);
    let mut contents = Contents::default();
    write(&mut contents, &facts, 0, 1, &[1, 2, 3, 4, 5]);
    assert_eq!(ids(&contents, &facts), [vec![0, 1], vec![], vec![2, 3, 4], vec![5]]);
    // An element beyond the binding counts in the bindings that follow.
    write(&mut contents, &facts, 0, 4, &[6, 7]);
    assert_eq!(ids(&contents, &facts), [vec![0, 1], vec![], vec![2, 3, 6], vec![7]]);
    write(&mut contents, &facts, 4, 0, &[8]);
    assert_eq!(ids(&contents, &facts), [vec![0, 1], vec![], vec![8, 3, 6], vec![7]]);
    // A write outside of the set is dropped, although checks refuse it before.
    write(&mut contents, &facts, 9, 1, &[9, 10, 11]);
    write(&mut contents, &facts, 7, 0, &[12]);
    write(&mut contents, &facts, 9, u32::MAX, &[12]);
    assert_eq!(ids(&contents, &facts), [vec![0, 1], vec![], vec![8, 3, 6], vec![7, 9]]);
}

#[test]
fn copies_take_what_is_there() {
    let facts = facts(&[(0, BUFFERS, 2), (1, BUFFERS, 3), (5, DescriptorType::INLINE_UNIFORM_BLOCK, 16)]);
    let span = |number, element| Span { facts: &facts, variable_count: 0, number, element };
    let (mut one, mut other) = (Contents::default(), Contents::default());
    write(&mut one, &facts, 0, 1, &[1, 2]);
    write(&mut other, &facts, 0, 0, &[7, 7, 7, 7, 7]);
    other.paste(&span(0, 1), &one.copied(&span(0, 0), 4));
    assert_eq!(ids(&other, &facts), [vec![7, 0], vec![1, 2, 0], vec![]]);
    // Into itself.
    let copied = one.copied(&span(0, 1), 2);
    one.paste(&span(1, 1), &copied);
    assert_eq!(ids(&one, &facts), [vec![0, 1], vec![2, 1, 2], vec![]]);
    // Out of a set that nothing was written into.
    other.paste(&span(1, 0), &Contents::default().copied(&span(0, 0), 2));
    assert_eq!(ids(&other, &facts), [vec![7, 0], vec![0, 0, 0], vec![]]);
}

#[test]
fn inline_uniform_blocks_are_bytes() {
    let facts = facts(&[(5, DescriptorType::INLINE_UNIFORM_BLOCK, 16), (6, BUFFERS, 1)]);
    let mut contents = Contents::default();
    let put = |contents: &mut Contents, element, data: &[u8]| {
        let (p_next, data_size) = (&[][..], data.len() as u32);
        let block = venus::WriteDescriptorSetInlineUniformBlock { p_next, data_size, p_data: Some(data) };
        let chain = [ChainStruct::WriteDescriptorSetInlineUniformBlock(&block)];
        let write = venus::WriteDescriptorSet {
            p_next: &chain,
            dst_binding: 5,
            dst_array_element: element,
            descriptor_count: data_size,
            descriptor_type: DescriptorType::INLINE_UNIFORM_BLOCK,
            ..Default::default()
        };
        contents.write(&facts, 0, &write);
    };
    put(&mut contents, 4, &[1, 2, 3, 4]);
    put(&mut contents, 0, &[9, 9]);
    assert_eq!(ids(&contents, &facts), [vec![9, 9, 0, 0, 1, 2, 3, 4], vec![]]);
    put(&mut contents, 12, &[5; 8]);
    assert_eq!(ids(&contents, &facts)[0], [9, 9, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 5, 5, 5, 5]);
    let span = |element| Span { facts: &facts, variable_count: 0, number: 5, element };
    let copied = contents.copied(&span(4), 4);
    contents.paste(&span(0), &copied);
    assert_eq!(ids(&contents, &facts)[0], [1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0, 5, 5, 5, 5]);
}

#[test]
fn a_variable_count_bounds_its_binding() {
    let mut facts = facts(&[(0, BUFFERS, 1), (1, BUFFERS, 1000)]);
    facts.bindings[1].flags = venus::DescriptorBindingFlags::VARIABLE_DESCRIPTOR_COUNT.0;
    let to = Span { facts: &facts, variable_count: 2, number: 0, element: 0 };
    let pieces: Vec<_> =
        to.pieces(9).map(|piece| (piece.at, piece.element, piece.before, piece.count)).collect();
    assert_eq!(pieces, [(0, 0, 0, 1), (1, 0, 1, 2)]);
}
