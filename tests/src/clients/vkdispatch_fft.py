"""vkdispatch: kernels generated at run time, its own FFTs, VkFFT and reductions, checked against numpy.

Prints one line per case with a digest of its result; a case that is too far from numpy's result fails the program.
"""
import hashlib
import os
import sys

import numpy
import vkdispatch as vd
import vkdispatch.codegen as vc

TOLERANCE = 1e-4  # of the largest value
# Under load the library now and then crashes the software driver, without any virtual machine too; it looks as if it destroyed what
# a queue still uses. So nothing is destroyed before the end, and the end skips the library's own clearing up.
kept = []
random = numpy.random.RandomState(1)
wrong = 0


def case(name, result, expected):
    global wrong
    result = numpy.ascontiguousarray(result)
    error = float(abs(result - expected).max() / abs(expected).max())
    print(f"{name}: {hashlib.sha256(result.tobytes()).hexdigest()[:16]}")
    print(f"{name}: {error:.2e} from numpy's result", file=sys.stderr)
    if not error < TOLERANCE:
        print(f"{name}: {error:.2e} from numpy's result: too far")
        wrong += 1


def upload(array):
    kept.append(vd.asbuffer(array))
    return kept[-1]


def signal(*shape):
    return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(numpy.complex64)


@vd.shader("out.size")
def polynomial(out: vc.Buff[vc.f32], left: vc.Buff[vc.f32], right: vc.Buff[vc.f32], offset: vc.Const[vc.f32]):
    index = vc.global_invocation_id().x
    out[index] = left[index] * right[index] + right[index] * right[index] - offset


@vd.reduce.reduce(0)
def total(left: vc.f32, right: vc.f32) -> vc.f32:
    return left + right


def main():
    vd.initialize(log_level=vd.LogLevel.ERROR)
    vd.make_context(device_ids=0)  # Left to itself it takes no device that calls itself a processor.
    print("device:", vd.get_devices()[0].device_name, file=sys.stderr)
    left, right = (random.standard_normal(100_003).astype("f4") for _ in range(2))
    out = vd.Buffer(left.shape, vd.float32)
    kept.append(out)
    for offset in [0.5, 2.0]:
        polynomial(out, upload(left), upload(right), offset)
        case(f"kernel, constant {offset}", out.read(0), left * right + right * right - numpy.float32(offset))
    case("sum", total(upload(abs(left))).read(0)[:1], abs(left).astype("f8").sum(keepdims=True))

    # A power of two, small primes, one that needs a larger prime, and one for several passes.
    for size in [64, 360, 1001, 4096, 16384]:
        data = signal(3, size)
        buffer = upload(data)
        vd.vkfft.fft(buffer)
        case(f"VkFFT {size}", buffer.read(0), numpy.fft.fft(data))
        vd.vkfft.ifft(buffer)
        case(f"VkFFT {size} and back", buffer.read(0), data)
    data = signal(60, 128)
    buffer = upload(data)
    vd.vkfft.fft2(buffer)
    case("VkFFT 60 by 128", buffer.read(0), numpy.fft.fft2(data))
    data = signal(16, 24, 32)
    buffer = upload(data)
    vd.vkfft.fft3(buffer)
    case("VkFFT 16 by 24 by 32", buffer.read(0), numpy.fft.fftn(data))

    for size in [243, 1024, 2310]:
        data = signal(5, size)
        buffer = upload(data)
        vd.fft.fft(buffer)
        case(f"generated FFT {size}", buffer.read(0), numpy.fft.fft(data))
    real = random.standard_normal((32, 64)).astype("f4")
    buffer = vd.asrfftbuffer(real)
    kept.append(buffer)
    vd.fft.rfft2(buffer)
    case("generated real FFT 32 by 64", buffer.read_fourier(0), numpy.fft.rfft2(real))
    sys.stdout.flush()
    os._exit(wrong)


main()
