"""Batches on their way to a device: see docs/device.md."""
