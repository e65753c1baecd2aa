"""The operations of a training step on a GPU, as torch operations with gradients and rules for vmap.

A step of small nets is a chain of kernels that take a few microseconds each whatever they do: what counts is
how many there are. So what takes the libraries several kernels is one kernel here, for all clients together,
with the client as a dimension of its grid. In large nets only the normalisations are ours, since the
libraries' read and write too much memory. The Triton kernels themselves are in kernels/.
"""
