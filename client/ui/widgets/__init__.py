"""The few kinds of widget that everything is shown with."""
