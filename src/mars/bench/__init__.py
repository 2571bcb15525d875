"""The benchmark behind ``mars bench``: step time and memory of optimizers, side by side.

It times optimizer steps on random tensors of real shapes. It trains nothing: whether an optimizer
is worth its time is for runs to say.
"""
