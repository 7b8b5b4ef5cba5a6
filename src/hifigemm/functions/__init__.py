"""NumPy's functions of products for the arrays of every library, by calls of `matmul`.

`contractions` holds functions that are one product of two operands, and einsum;
`chains` functions that are several products in a row; `symmetric` the products of a
matrix with its own transpose. They move axes by the functions of `verbs` alone, and
multiply by `products.Products`.
"""
