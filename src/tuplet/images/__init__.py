"""From an image file to the pixels of a network: open files within limits, decode them, crop them.

No module here imports torch at its top, so that a process which decodes uploads starts in a fraction of a second.
"""
