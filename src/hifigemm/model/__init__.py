"""What a product is, in data and protocols: problem, accuracy, plan, report, engine.

Nothing here computes a product.
"""
