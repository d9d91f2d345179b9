"""ONNX models in: a graph becomes a torch module, which `torch.export` traces.

One table (`registry.OPS`) says what each op computes, in torch ops; everything after that is the
path of any other torch module.
"""
