"""wgpu-native, which takes devices only that have a queue that draws, computes squares."""

import wgpu
from wgpu import BufferUsage

COUNT = 4096
SHADER = """
@group(0) @binding(0) var<storage, read> numbers: array<i32>;
@group(0) @binding(1) var<storage, read_write> squares: array<i32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    squares[id.x] = numbers[id.x] * numbers[id.x] + 3;
}
"""

adapters = [adapter for adapter in wgpu.gpu.enumerate_adapters_sync() if adapter.info["backend_type"] == "Vulkan"]
assert adapters, "no Vulkan device"
device = adapters[0].request_device_sync()
data = memoryview(bytearray(4 * COUNT)).cast("i")
for number in range(COUNT):
    data[number] = number
numbers = device.create_buffer_with_data(data=data, usage=BufferUsage.STORAGE)
squares = device.create_buffer(size=4 * COUNT, usage=BufferUsage.STORAGE | BufferUsage.COPY_SRC)
module = device.create_shader_module(code=SHADER)
pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
buffers = [numbers, squares]
entries = [{"binding": at, "resource": {"buffer": buffer, "offset": 0, "size": 4 * COUNT}} for at, buffer in enumerate(buffers)]
group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
encoder = device.create_command_encoder()
compute = encoder.begin_compute_pass()
compute.set_pipeline(pipeline)
compute.set_bind_group(0, group)
compute.dispatch_workgroups(COUNT // 64, 1, 1)
compute.end()
device.queue.submit([encoder.finish()])
found = device.queue.read_buffer(squares).cast("i")
print(sum(found), "right" if all(found[number] == number * number + 3 for number in range(COUNT)) else "wrong")
