"""A trained model as a GGUF file, which llama.cpp loads, and ollama with it."""
