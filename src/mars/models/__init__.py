"""What is trained: GPT-2 as the paper ran it, its Hugging Face form, and sampling from it.

Models know shapes and initial weights; batches, devices and optimizers are for other rooms.
"""
