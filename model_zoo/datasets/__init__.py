"""Folders of tokens: how they are made of text files, read, and checked."""
