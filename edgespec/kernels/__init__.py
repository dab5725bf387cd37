"""Our operators for ONNX Runtime: quantized matrix products, as cheap for several tokens as for one."""
