"""What a training run would take on a cluster, computed from shapes alone: nothing is allocated.

Memory, communication and times of one step, on the GPU that holds the most. ``docs/planning.md``
derives the formulas and says what they leave out.
"""
