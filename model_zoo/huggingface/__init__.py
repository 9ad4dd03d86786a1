"""Models of Hugging Face folders, in and out: configurations, names of tensors, safetensors."""
