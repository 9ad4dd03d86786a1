"""The widgets of all tabs and dialogs."""
