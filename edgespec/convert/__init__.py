"""GGUF → ONNX without torch: the same weights for a second runtime."""
