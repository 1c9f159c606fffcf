"""ncnn: a network with random weights on the GPU, once per arithmetic, and the same on the processor as a check.

Prints one line per arithmetic: a digest of the results and whether they are near the processor's. Arguments choose among them.
"""
import hashlib
import os
import struct
import sys
import tempfile

import ncnn
import numpy

CHANNELS, WIDTH, HEIGHT = 8, 40, 32
# How far arithmetic may be from the processor's single precision, relative to the largest value.
TOLERANCE = {"fp32": 1e-3, "fp16 storage": 2e-2, "fp16": 4e-2, "int8": 2e-2}
random = numpy.random.RandomState(1)


class Model:
    """Layers as ncnn's text format has them, and their weights as its binary format has them."""

    def __init__(self):
        self.layers, self.weights, self.blobs = [], bytearray(), 0

    def layer(self, kind, inputs, outputs, parameters=""):
        self.blobs += len(outputs)
        name = f"{kind}_{len(self.layers)}"
        counts = f"{len(inputs)} {len(outputs)}"
        self.layers.append(" ".join([kind, name, counts, *inputs, *outputs, parameters]))

    def floats(self, count, spread, flagged):
        if flagged:
            self.weights += struct.pack("<I", 0)
        self.weights += (random.standard_normal(count) * spread).astype("<f4").tobytes()

    def convolution(self, source, target, outputs, inputs, size, int8=False, stride=1):
        count = outputs * inputs * size * size
        parameters = f"0={outputs} 1={size} 3={stride} 4={size // 2} 5=1 6={count} 9=1"
        self.layer("Convolution", [source], [target], parameters + (" 8=1" if int8 else ""))
        if not int8:
            self.floats(count, (inputs * size * size) ** -0.5, True)
            self.floats(outputs, 0.1, False)
            return
        self.weights += struct.pack("<I", 0x000D4B38)
        numbers = random.randint(-127, 128, count).astype("i1").tobytes()
        self.weights += numbers + bytes(-count % 4)
        self.floats(outputs, 0.1, False)
        scale = 74.0 * (inputs * size * size) ** 0.5
        self.weights += numpy.full(outputs, scale, "<f4").tobytes() + struct.pack("<f", 40.0)

    def depthwise(self, source, target, channels):
        self.layer("ConvolutionDepthWise", [source], [target], f"0={channels} 1=3 4=1 5=1 6={channels * 9} 7={channels}")
        self.floats(channels * 9, 0.4, True)
        self.floats(channels, 0.1, False)

    def text(self):
        return "\n".join(["7767517", f"{len(self.layers)} {self.blobs}", *self.layers]) + "\n"


def network(int8):
    model = Model()
    model.layer("Input", [], ["data"], f"0={WIDTH} 1={HEIGHT} 2={CHANNELS}")
    model.convolution("data", "first", 32, CHANNELS, 3, int8)
    model.layer("Split", ["first"], ["left", "right"])
    model.convolution("left", "narrow", 16, 32, 1, int8)
    model.depthwise("right", "deep", 32)
    model.layer("Sigmoid", ["deep"], ["gate"])
    model.layer("Concat", ["narrow", "gate"], ["joined"], "0=0")
    model.layer("Pooling", ["joined"], ["pooled"], "0=0 1=2 2=2")
    model.convolution("pooled", "second", 24, 48, 3, int8, stride=2)
    model.layer("Split", ["second"], ["trunk", "branch"])
    model.convolution("branch", "refined", 24, 24, 5, int8)
    model.layer("BinaryOp", ["trunk", "refined"], ["sum"], "0=0")
    model.layer("LayerNorm", ["sum"], ["normed"], "0=10 1=0.001 2=0")
    model.layer("GELU", ["normed"], ["active"])
    model.layer("Interp", ["active"], ["larger"], "0=2 1=2.0 2=2.0")
    model.layer("Deconvolution", ["larger"], ["spread"], f"0=12 1=4 3=2 4=1 5=1 6={24 * 12 * 16}")
    model.floats(24 * 12 * 16, 0.1, True)
    model.floats(12, 0.1, False)
    model.layer("Reshape", ["spread"], ["rows"], "0=-1 1=12")
    model.layer("InnerProduct", ["rows"], ["dense"], f"0=20 1=1 2={20 * 1280}")
    model.floats(20 * 1280, 0.05, True)
    model.floats(20, 0.1, False)
    model.layer("Softmax", ["dense"], ["out"], "0=1 1=1")
    return model


def run(model, folder, vulkan, settings):
    net = ncnn.Net()
    net.opt.use_vulkan_compute = vulkan
    net.opt.num_threads = 1
    for part in ["packed", "storage", "arithmetic"]:
        setattr(net.opt, f"use_fp16_{part}", f"fp16_{part}" in settings)
        setattr(net.opt, f"use_int8_{part}", "int8" in settings)
    net.opt.use_bf16_storage = False
    path = os.path.join(folder, "weights")
    with open(path, "wb") as file:
        file.write(model.weights)
    assert net.load_param_mem(model.text()) == 0 and net.load_model(path) == 0
    image = numpy.random.RandomState(2).standard_normal((CHANNELS, HEIGHT, WIDTH)).astype("f4")
    results = []
    for name in ["narrow", "joined", "sum", "spread", "out"]:
        extractor = net.create_extractor()
        extractor.input("data", ncnn.Mat(image).clone())
        status, result = extractor.extract(name)
        assert status == 0, f"{name}: {status}"
        results.append(numpy.array(result, copy=True))
    return results


def main():
    assert ncnn.get_gpu_count() > 0, "ncnn finds no Vulkan device"
    print("device:", ncnn.get_gpu_info(0).device_name(), file=sys.stderr)
    halves = {"fp16_packed", "fp16_storage", "fp16_arithmetic"}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        floats, integers = network(False), network(True)
        for name, model, settings in [
            ("fp32", floats, set()),
            ("fp16 storage", floats, {"fp16_packed", "fp16_storage"}),
            ("fp16", floats, halves),
            ("int8", integers, {"int8"}),
        ]:
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            on_gpu = run(model, folder, True, settings)
            expected = run(model, folder, False, {"int8"} if "int8" in settings else set())
            digest = hashlib.sha256(b"".join(array.tobytes() for array in on_gpu)).hexdigest()[:16]
            pairs = list(zip(on_gpu, expected, strict=True))
            error = max(float(abs(got - right).max() / abs(right).max()) for got, right in pairs)
            print(f"{name}: {digest}")
            print(f"{name}: {error:.2e} from the processor's result", file=sys.stderr)
            if not error < TOLERANCE[name]:
                print(f"{name}: {error:.2e} from the processor's result: too far")
                wrong += 1
    sys.exit(wrong)


main()
