"""Datasets with their splits, decoding, caches and augmentation."""
