"""edbc."""
