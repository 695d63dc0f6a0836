"""Tuplet: deep metric learning with exact losses at any batch size."""

__version__ = "0.1.0"
