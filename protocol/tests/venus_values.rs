//! Values with a wire form: how few bytes one has, the partial form of out parameters, flags, handles and enumerations.

use protocol::cursor::{Arena, Limits, Reader, Writer};
use protocol::error::{DecodeError, DecodeErrorKind as Kind};
use protocol::venus::generated::*;
use protocol::venus::wire::{
    Decode, DecodePartial, Encode, EncodePartial, Enumeration, Handle, Null, Structure,
};

const REFUSED: Null = Null::Refused;
const ALLOWED: Null = Null::Allowed;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn written(write: impl Fn(&mut Writer<'static>)) -> Vec<u8> {
    let mut writer = Writer::growing();
    write(&mut writer);
    writer.into_bytes()
}

/// Reads these bytes, and tells what was left.
fn read<T>(
    wire: &[u8],
    arena: &Arena,
    of: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<(T, usize), (&'static str, Kind)> {
    let mut reader = Reader::new(wire, arena);
    let found = of(&mut reader);
    found.map(|value| (value, reader.remaining())).map_err(|error| (error.what, error.kind))
}

/// Counts are bounded by this: a number that is too high would refuse arrays that are there.
#[test]
fn the_fewest_bytes_of_a_value_are_those_of_an_empty_one() {
    macro_rules! check {
        ($($type:ty),* $(,)?) => {$({
            let value = <$type>::default();
            assert_eq!(<$type as Decode>::MIN_SIZE, written(|w| w.value(&value)).len(), stringify!($type));
        })*};
    }
    check!(u8, u16, u32, i32, u64, i64, f32, f64, Format, ShaderStageFlags, AccessFlags2, Buffer, Offset3D);
    check!(FenceCreateInfo<'_>, BufferCreateInfo<'_>, RingCreateInfoMESA<'_>, MemoryAllocateInfo<'_>);
    check!(DeviceQueueCreateInfo<'_>, DescriptorSetLayoutBinding<'_>, SubpassDescription<'_>, ImageBlit);
    macro_rules! check_partial {
        ($($type:ty),* $(,)?) => {$({
            let value = <$type>::default();
            let length = written(|w| w.partial(&value)).len();
            assert_eq!(<$type as DecodePartial>::MIN_PARTIAL_SIZE, length, stringify!($type));
        })*};
    }
    check_partial!(Buffer, DeviceMemory, ExtensionProperties, MemoryType, FormatProperties);
    check_partial!(PhysicalDeviceFeatures2<'_>, MemoryRequirements2<'_>, QueueFamilyProperties2<'_>);
}

#[test]
fn arrays_that_just_fit_are_read_and_longer_ones_take_no_memory() {
    // The arena has no room for what the counts promise.
    let arena = Arena::new(4096);
    for (fit, length) in [(3, 3), (3, 4), (0, u64::from(u32::MAX)), (0, u64::MAX)] {
        let wire = [length.to_le_bytes().to_vec(), vec![0; 24]].concat();
        let is_there = fit == length;
        let expected = |there: usize| if is_there { Ok(there) } else { Err(("m", Kind::Truncated)) };
        let of = |found: Result<(Option<usize>, usize), (&'static str, Kind)>| {
            found.map(|(count, _)| count.unwrap_or(0))
        };
        let numbers =
            read(&wire, &arena, |r| r.array::<u64>("m", length, REFUSED).map(|all| all.map(<[_]>::len)));
        assert_eq!(of(numbers), expected(3));
        let sized = read(&wire, &arena, |r| r.sized_array::<u64>("m").map(|all| all.map(<[_]>::len)));
        assert_eq!(of(sized), expected(3));
        let handles = read(&wire, &arena, |r| {
            r.partial_array::<Buffer>("m", length, REFUSED).map(|all| all.map(<[_]>::len))
        });
        assert_eq!(of(handles), expected(3));
    }
    // Text has at least 12 bytes.
    let texts = |count: u32, present: usize| {
        let wire = [words(&[count, 0]), words(&[1, 0, 0]).repeat(present)].concat();
        read(&wire, &arena, |r| r.strings("m", count.into(), REFUSED).map(|all| all.map(<[_]>::len)))
            .map(|(count, _)| count)
    };
    assert_eq!(texts(2, 2), Ok(Some(2)));
    assert_eq!(texts(3, 2), Err(("m", Kind::Truncated)));
}

#[test]
fn what_a_driver_will_write_is_as_long_as_it_says_and_holds_nothing() {
    let arena = Arena::new(1 << 16);
    let pointer = |wire: &[u32], null| {
        read(&words(wire), &arena, |r| r.out_pointer::<u32>("m", null).map(|found| found.copied()))
    };
    assert_eq!(pointer(&[1, 0], REFUSED), Ok((Some(0), 0)));
    assert_eq!(pointer(&[0, 0], ALLOWED), Ok((None, 0)));
    assert_eq!(pointer(&[0, 0], REFUSED), Err(("m", Kind::Null)));
    assert_eq!(written(|w| w.out_pointer(Some(&7u32))), words(&[1, 0]));
    assert_eq!(written(|w| w.out_array(Some(&[7u32, 8]))), words(&[2, 0]));
    assert_eq!(read(&[0; 8], &arena, |r| r.null_pointer("m")), Ok(((), 0)));
    assert_eq!(read(&[0; 7], &arena, |r| r.null_pointer("m")), Err(("m", Kind::Truncated)));
    // Elements without bytes of their own are as many as the limit says.
    let most = 100;
    let elements = |count: u64| {
        let (wire, limits) = (count.to_le_bytes(), Limits { max_out_elements: most, ..Limits::default() });
        let mut reader = Reader::with_limits(&wire, &arena, limits);
        let found = reader.partial_array::<MemoryType>("m", count, REFUSED);
        found.map(|all| all.map_or(0, <[_]>::len)).map_err(|error| error.kind)
    };
    assert_eq!(elements(most), Ok(100));
    assert_eq!(elements(most + 1), Err(Kind::OutBudget));
    assert_eq!(elements(u64::MAX), Err(Kind::OutBudget));
}

#[test]
fn the_partial_form_of_a_structure_has_its_type_and_its_chain() {
    let arena = Arena::new(1 << 16);
    let dedicated = MemoryDedicatedRequirements { prefers_dedicated_allocation: 1, ..Default::default() };
    let chain = [ChainStruct::MemoryDedicatedRequirements(&dedicated)];
    let value = MemoryRequirements2 { p_next: &chain, ..Default::default() };
    let (own, next) = (MemoryRequirements2::S_TYPE as u32, MemoryDedicatedRequirements::S_TYPE as u32);
    let wire = written(|w| w.partial_pointer(Some(&value)));
    assert_eq!(wire, words(&[1, 0, own, 1, 0, next, 0, 0]));
    let pointer = |wire: &[u8], null| {
        read(wire, &arena, |r| {
            r.partial_pointer::<MemoryRequirements2<'_>>("m", null)
                .map(|found| found.map(|found| found.p_next.len()))
        })
    };
    assert_eq!(pointer(&wire, REFUSED), Ok((Some(1), 0)));
    assert_eq!(pointer(&[0; 8], ALLOWED), Ok((None, 0)));
    assert_eq!(pointer(&[0; 8], REFUSED), Err(("m", Kind::Null)));
    for end in 0..wire.len() {
        let what = if end < 8 { "m" } else { "MemoryRequirements2" };
        assert_eq!(pointer(&wire[..end], ALLOWED), Err((what, Kind::Truncated)), "{end} bytes");
    }
    // What stands in the wrong place is named by its owner.
    let found = pointer(&words(&[1, 0, own + 1, 0, 0]), REFUSED);
    let kind = Kind::StructureType { found: own as i32 + 1, expected: own as i32 };
    assert_eq!(found, Err(("MemoryRequirements2", kind)));
    let found = pointer(&words(&[1, 0, own, 1, 0, own, 0, 0]), REFUSED);
    assert_eq!(found, Err(("MemoryRequirements2", Kind::ChainStructure(own as i32))));
    let found = pointer(&words(&[1, 0, own, 2, 0, next, 0, 0]), REFUSED);
    assert_eq!(found, Err(("MemoryRequirements2", Kind::Presence(2))));
}

#[test]
fn arrays_in_structs_have_a_count_that_never_varies() {
    let arena = Arena::new(1 << 16);
    let handles = [Buffer(1), Buffer(2)];
    let wire = written(|w| w.partial_fixed(&handles));
    assert_eq!(wire, words(&[2, 0, 1, 0, 2, 0]));
    assert_eq!(read(&wire, &arena, |r| r.partial_fixed::<Buffer, 2>("m")), Ok((handles, 0)));
    for end in 0..wire.len() {
        assert_eq!(
            read(&wire[..end], &arena, |r| r.partial_fixed::<Buffer, 2>("m")),
            Err(("m", Kind::Truncated))
        );
    }
    for count in [0, 1, 3, 2 | 1 << 32] {
        let wire = [u64::to_le_bytes(count).to_vec(), vec![0; 64]].concat();
        let kind = Kind::Count { found: count, expected: 2 };
        assert_eq!(read(&wire, &arena, |r| r.partial_fixed::<Buffer, 2>("m")), Err(("m", kind)));
        assert_eq!(read(&wire, &arena, |r| r.fixed::<u32, 2>("m")), Err(("m", kind)));
        assert_eq!(read(&wire, &arena, |r| r.fixed_bytes::<2>("m")), Err(("m", kind)));
    }
}

#[test]
fn absent_lists_and_texts_are_a_zero() {
    let arena = Arena::new(0);
    let zero = [0; 8];
    for wire in [
        written(|w| w.array::<u32>(None)),
        written(|w| w.array::<u32>(Some(&[]))),
        written(|w| w.bytes(None)),
        written(|w| w.string(None)),
        written(|w| w.strings(None)),
        written(|w| w.pointer::<u32>(None)),
        written(|w| w.partial_array::<Buffer>(None)),
        written(Writer::null_pointer),
    ] {
        assert_eq!(wire, zero);
    }
    assert_eq!(
        read(&zero, &arena, |r| r.sized_array::<u32>("m").map(|found| found.is_none())),
        Ok((true, 0))
    );
    assert_eq!(read(&zero, &arena, |r| r.sized_bytes("m").map(|found| found.is_none())), Ok((true, 0)));
    assert_eq!(read(&zero, &arena, |r| r.bytes("m", 5, ALLOWED).map(|found| found.is_none())), Ok((true, 0)));
    assert_eq!(read(&zero, &arena, |r| r.string("m", ALLOWED).map(|found| found.is_none())), Ok((true, 0)));
}

#[test]
fn an_error_names_the_innermost_member_and_the_place() {
    let arena = Arena::new(1 << 12);
    // A pointer to information about a fence, which ends in its flags.
    let wire = words(&[1, 0, 8, 0, 0]);
    let mut reader = Reader::new(&wire, &arena);
    let error = reader.pointer::<FenceCreateInfo<'_>>("outer", REFUSED).expect_err("it ends");
    assert_eq!(error.to_string(), "FenceCreateInfo.flags at byte 20: input ends early");
    // A reply to another command.
    let found = read(&words(&[137, 0]), &arena, |r| Reply::decode(2, r).map(drop));
    assert_eq!(found, Err(("reply", Kind::Command(137))));
    // Room in the arena is an error at the place of the value.
    let full = Arena::new(0);
    let wire = words(&[1, 0, 5, 0]);
    let mut reader = Reader::new(&wire, &full);
    let error = reader.pointer::<u64>("m", REFUSED).expect_err("there is no room");
    assert_eq!((error.kind, error.offset), (Kind::ArenaFull, 16));
}

#[test]
fn flags_are_sets_of_bits() {
    let (vertex, compute) = (ShaderStageFlags::VERTEX, ShaderStageFlags::COMPUTE);
    let both = vertex | compute;
    assert_eq!(both.0, 0x21);
    assert!(both.contains(vertex) && both.contains(both) && both.contains(ShaderStageFlags::empty()));
    assert!(!vertex.contains(both) && !vertex.contains(compute));
    assert!(
        vertex.intersects(both)
            && !vertex.intersects(compute)
            && !vertex.intersects(ShaderStageFlags::empty())
    );
    assert!(ShaderStageFlags::empty().is_empty() && !vertex.is_empty());
    // Bits that the registry does not name are on the wire, and not among the known ones.
    let arena = Arena::new(0);
    let (all, _) = read(&[0xff; 8], &arena, |r| r.value::<AccessFlags2>("m")).unwrap();
    assert_eq!(all.0, u64::MAX);
    assert!(all.known().0 != 0 && all.known().0 != u64::MAX);
    assert_eq!(AccessFlags2(1 | 1 << 63).known(), AccessFlags2(1));
}

#[test]
fn handles_are_the_objects_numbers() {
    assert_eq!(
        (Buffer::KIND, Image::KIND, Device::KIND),
        (ObjectType::BUFFER, ObjectType::IMAGE, ObjectType::DEVICE)
    );
    assert_eq!((<Buffer as Handle>::from_id(7), Buffer(9).id()), (Buffer(7), 9));
    assert!(Buffer::NULL.is_null() && Buffer(0).is_null() && !Buffer(1 << 63).is_null());
    // Both forms are the same 8 bytes.
    let handle = Buffer(0x0102_0304_0506_0708);
    let wire = [8, 7, 6, 5, 4, 3, 2, 1];
    assert_eq!(written(|w| handle.encode(w)), wire);
    assert_eq!(written(|w| handle.encode_partial(w)), wire);
    let arena = Arena::new(0);
    assert_eq!(read(&wire, &arena, |r| r.partial::<Buffer>("m")), Ok((handle, 0)));
    assert_eq!(read(&wire[..7], &arena, |r| r.partial::<Buffer>("m")), Err(("m", Kind::Truncated)));
}

#[test]
fn enumerations_know_their_values() {
    let known = [BlendFactor::ZERO, BlendFactor::ONE, BlendFactor(18)];
    assert!(known.iter().all(|factor| factor.is_known()));
    for number in [-1, 19, 1000, i32::MIN, i32::MAX] {
        let factor = BlendFactor(number);
        assert!(!factor.is_known(), "{number}");
        assert_eq!(factor.number(), number);
    }
    // A value that is not known is read all the same, because the next version may know it.
    let arena = Arena::new(0);
    let found = read(&(-5i32).to_le_bytes(), &arena, |r| r.value::<BlendFactor>("m"));
    assert_eq!(found, Ok((BlendFactor(-5), 0)));
}

#[test]
fn structs_that_may_be_chained_are_sorted_for_their_search() {
    fn check<'a, T: Structure<'a>>() {
        assert!(T::EXTENDED_BY.is_sorted_by(|one, next| one < next), "{}", T::NAME);
        assert!(!T::EXTENDED_BY.is_empty(), "{}", T::NAME);
        assert!(!T::EXTENDED_BY.contains(&T::S_TYPE), "{} in itself", T::NAME);
        assert!(T::EXTENDED_BY.iter().all(|s_type| ChainStruct::S_TYPES.contains(s_type)), "{}", T::NAME);
    }
    check::<DeviceCreateInfo<'_>>();
    check::<PhysicalDeviceFeatures2<'_>>();
    check::<PhysicalDeviceProperties2<'_>>();
    check::<MemoryAllocateInfo<'_>>();
    check::<ImageCreateInfo<'_>>();
    check::<GraphicsPipelineCreateInfo<'_>>();
}
