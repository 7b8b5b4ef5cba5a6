"""NumPy's functions of products for the arrays of every library, by calls of `matmul`.

`contractions` holds functions that are one product of two operands; `einsum` and
`chains` functions that are several products in a row; `symmetric` the products of a
matrix with its own transpose. How operands become stacks of matrices follows from their
shapes (`arrangement`), and is kept for later calls. They move axes by the functions of
`verbs` alone, and multiply by `products.Products`.
"""
