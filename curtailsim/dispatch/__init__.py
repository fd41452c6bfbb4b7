"""Pre-training as a grid knob: when, and in which mode, should a pool run its training tasks?"""
