"""Functions of products as NumPy has them, for the arrays of every library: each is
made of calls of `matmul`.

`contractions` holds those that are one product of two operands, and einsum; `chains`
those of several products in a row; `symmetric` the products of a matrix with its own
transpose. They move axes by the verbs of `verbs` alone, and all that they multiply goes
through `products.Products`.
"""
