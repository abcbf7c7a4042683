"""Which sample comes when: orders, blends, samplers and the loader."""
