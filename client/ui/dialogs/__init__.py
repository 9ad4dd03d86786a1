"""Questions and explanations that cover the screen until they are answered."""
