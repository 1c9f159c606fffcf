//! Buffer device addresses: from push constants, in structs, chained, of every width, into suballocated memory.

use ash::vk;

use crate::bytes::expect;
use crate::case::Case;
use crate::elementwise::noise32;
use crate::kernel::{STORAGE, Slot};

const HEAD: &str = "#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_buffer_reference_uvec2 : require
";

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        from_push_constants(),
        list(),
        tree(),
        in_a_struct(),
        from_words(),
        arithmetic(),
        of_a_part(),
        atomics(),
        narrow(),
    ]
}

fn from_push_constants() -> Case {
    Case::new("addresses.from_push_constants", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let input = noise32(40, 64);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        gpu.compute_with(0, &[], &[gpu.address(&from), gpu.address(&to)], 1)?;
        expect(&to.values::<u32>(), &input.iter().map(|value| value ^ 0xff).collect::<Vec<_>>())
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, std430) buffer Words {{ uint words[]; }};
layout(push_constant) uniform Push {{ Words from; Words to; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to.words[i] = from.words[i] ^ 0xff; }}"
    ))
}

fn list() -> Case {
    Case::new("addresses.linked_list", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let nodes = (0..20).map(|_| gpu.buffer(16)).collect::<anyhow::Result<Vec<_>>>()?;
        for (index, node) in nodes.iter().enumerate() {
            // A ring: a software driver may load through null for lanes that are switched off.
            let next = gpu.address(&nodes[(index + 1) % nodes.len()]);
            node.write(&[next, index as u64 * 3 + 1]);
        }
        let to = gpu.buffer(8)?;
        gpu.compute_with(0, &[&to], &[gpu.address(&nodes[0])], 1)?;
        expect(&to.values::<u32>(), &[20, (0..20).map(|index| index * 3 + 1).sum()])
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 1) in;
layout(buffer_reference) buffer Node;
layout(buffer_reference, std430) buffer Node {{ Node next; uint value; }};
layout(binding = 0) writeonly buffer To {{ uint count, sum; }};
layout(push_constant) uniform Push {{ Node first; }};
void main() {{
    uint seen = 0, total = 0;
    Node node = first;
    do {{ seen++; total += node.value; node = node.next; }} while (uint64_t(node) != uint64_t(first));
    count = seen;
    sum = total;
}}"
    ))
}

/// An array of references to the type that is being declared: a type made of a pointer that is declared later.
fn tree() -> Case {
    Case::new("addresses.tree", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let nodes = (0..15).map(|_| gpu.buffer(32)).collect::<anyhow::Result<Vec<_>>>()?;
        for (index, node) in nodes.iter().enumerate() {
            // The children of the leaves are nodes from the beginning again.
            let child = |side: usize| gpu.address(&nodes[(2 * index + 1 + side) % nodes.len()]);
            node.write(&[child(0), child(1), index as u64 + 1]);
        }
        let to = gpu.buffer(64 * 4)?;
        gpu.compute_with(0, &[&to], &[gpu.address(&nodes[0])], 1)?;
        let walk = |path: usize| (0..6).fold(0, |at, step| (2 * at + 1 + (path >> step & 1)) % 15) as u32 + 1;
        expect(&to.values::<u32>(), &(0..64).map(walk).collect::<Vec<_>>())
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference) buffer Node;
layout(buffer_reference, std430) buffer Node {{ Node children[2]; uint value; }};
layout(binding = 0) writeonly buffer To {{ uint found[]; }};
layout(push_constant) uniform Push {{ Node root; }};
void main() {{
    uint path = gl_LocalInvocationID.x;
    Node node = root;
    for (uint step = 0; step < 6; step++) {{
        if ((path >> step & 1) == 0) {{ node = node.children[0]; }} else {{ node = node.children[1]; }}
    }}
    found[path] = node.value;
}}"
    ))
}

fn in_a_struct() -> Case {
    Case::new("addresses.in_a_struct_in_a_buffer", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let parts = (0..4u32).map(|i| gpu.buffer_of(&noise32(41 + u64::from(i), 16))).collect::<anyhow::Result<Vec<_>>>()?;
        let table: Vec<[u64; 2]> = parts.iter().enumerate().map(|(i, part)| [gpu.address(part), i as u64]).collect();
        let (table, to) = (gpu.buffer_of(&table)?, gpu.buffer(256)?);
        gpu.compute(0, &[&table, &to], 1)?;
        let expected: Vec<u32> = (0..64u32).map(|i| noise32(41 + u64::from(i / 16), 16)[i as usize % 16] + i / 16).collect();
        expect(&to.values::<u32>(), &expected)
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, std430) readonly buffer Words {{ uint words[16]; }};
struct Part {{ Words at; uint index; }};
layout(std430, binding = 0) readonly buffer Table {{ Part parts[]; }};
layout(binding = 1) writeonly buffer To {{ uint to[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = parts[i / 16].at.words[i % 16] + parts[i / 16].index; }}"
    ))
}

fn from_words() -> Case {
    Case::new("addresses.from_two_words", |gpu| {
        gpu.require(&["bufferDeviceAddress"])?;
        let to = gpu.buffer(256)?;
        gpu.compute_with(0, &[], &[gpu.address(&to)], 1)?;
        expect(&to.values::<u32>(), &(0..64).map(|i| i * 5).collect::<Vec<u32>>())
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, std430) writeonly buffer Words {{ uint words[]; }};
layout(push_constant) uniform Push {{ uvec2 to; }};
void main() {{ uint i = gl_GlobalInvocationID.x; Words(to).words[i] = i * 5; }}"
    ))
}

fn arithmetic() -> Case {
    Case::new("addresses.pointer_arithmetic", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let input = noise32(45, 128);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        gpu.compute_with(0, &[&to], &[gpu.address(&from)], 1)?;
        expect(&to.values::<u32>(), &(0..64).map(|i| input[2 * i + 1]).collect::<Vec<_>>())
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pair {{ uint a, b; }};
layout(binding = 0) writeonly buffer To {{ uint to[]; }};
layout(push_constant) uniform Push {{ Pair first; }};
void main() {{ uint i = gl_GlobalInvocationID.x; Pair pair = first + int(i); to[i] = pair.b; }}"
    ))
}

fn of_a_part() -> Case {
    Case::new("addresses.buffers_of_one_memory", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let usage = gpu.every_use();
        let create = || -> anyhow::Result<vk::Buffer> {
            let info = vk::BufferCreateInfo::default().size(256).usage(usage);
            let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
            gpu.later(move |device| unsafe { device.destroy_buffer(buffer, None) });
            Ok(buffer)
        };
        let (first, second) = (create()?, create()?);
        let mut requirements = unsafe { gpu.device.get_buffer_memory_requirements(first) };
        let offset = requirements.size.next_multiple_of(requirements.alignment.max(4096));
        requirements.size += offset;
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let memory = gpu.allocate(requirements, visible, true)?;
        unsafe { gpu.device.bind_buffer_memory(first, memory, 0) }?;
        unsafe { gpu.device.bind_buffer_memory(second, memory, offset) }?;
        let address = |buffer| {
            let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
            unsafe { gpu.device.get_buffer_device_address(&info) }
        };
        expect(&[address(second) - address(first)], &[offset])?;
        let to = gpu.buffer(256)?;
        let kernel = gpu.kernel(0).bindings(&[STORAGE]).push(16).build()?;
        let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
        gpu.run(|commands| {
            unsafe { gpu.device.cmd_fill_buffer(commands, first, 0, 256, 17) };
            unsafe { gpu.device.cmd_fill_buffer(commands, second, 0, 256, 5) };
            gpu.barrier(commands);
            gpu.bind(commands, &kernel, set);
            gpu.push(commands, &kernel, &[address(first), offset]);
            unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
        })?;
        expect(&to.values::<u32>(), &[12; 64])
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, std430) readonly buffer Words {{ uint words[64]; }};
layout(binding = 0) writeonly buffer To {{ uint to[]; }};
layout(push_constant) uniform Push {{ uint64_t first; uint64_t offset; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = Words(first).words[i] - Words(first + offset).words[i]; }}"
    ))
}

fn atomics() -> Case {
    Case::new("addresses.atomics", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64"])?;
        let to = gpu.buffer(16)?;
        gpu.compute_with(0, &[], &[gpu.address(&to)], 8)?;
        expect(&to.values::<u32>(), &[(0..512).sum(), 511, 512, 0])
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, std430) buffer Cells {{ uint sum, most, count; }};
layout(push_constant) uniform Push {{ Cells cells; }};
void main() {{
    uint i = gl_GlobalInvocationID.x;
    atomicAdd(cells.sum, i);
    atomicMax(cells.most, i);
    atomicAdd(cells.count, 1);
}}"
    ))
}

fn narrow() -> Case {
    Case::new("addresses.narrow_and_wide", |gpu| {
        gpu.require(&["bufferDeviceAddress", "shaderInt64", "shaderInt8", "storageBuffer8BitAccess"])?;
        let input = noise32(46, 64);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        gpu.compute_with(0, &[], &[gpu.address(&from), gpu.address(&to)], 4)?;
        let bytes = crate::bytes::bytes_of(&input);
        expect(&to.values::<u8>(), &bytes.iter().map(|byte| byte.wrapping_add(1)).collect::<Vec<_>>())
    })
    .glsl(format!(
        "{HEAD}layout(local_size_x = 64) in;
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Byte {{ uint8_t value; }};
layout(push_constant) uniform Push {{ uint64_t from; uint64_t to; }};
void main() {{ uint64_t i = gl_GlobalInvocationID.x; Byte(to + i).value = Byte(from + i).value + uint8_t(1); }}"
    ))
}
