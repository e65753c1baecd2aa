"""What a net's step is made of on a GPU, as torch operations with gradients and vmap's rules.

A step of small nets is a chain of kernels that take a few microseconds each, whatever they do: what counts is
how many there are. So what the libraries do in several kernels is one here, for all clients together: the
client is a dimension of its grid. Of large nets only the normalisations are ours, whose many kernels read and
write too much. The Triton kernels themselves are in kernels/.
"""
