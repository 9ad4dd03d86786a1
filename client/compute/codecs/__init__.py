"""The arithmetic of the codecs that quantise blocks (``model_zoo.specs.codec``)."""
