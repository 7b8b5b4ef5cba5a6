"""Times of products, of what they compete with and of what the device could do: checked
first, then timed.

`hifigemm bench` and the scripts in benchmarks/ use it. The library itself uses nothing
of it.
"""
