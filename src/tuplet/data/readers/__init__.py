"""Readers of what holds data: arrays, folders, tables, tars and glyphs. `tuplet.data.open` chooses one."""
