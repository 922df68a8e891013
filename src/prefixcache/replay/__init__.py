"""The laboratory on paper: traces in, what each design would have reused out; no model and no memory."""
