"""GPU kernels of the torch engine; torch and triton are imported by the modules in
here, never by `import hifigemm`.
"""
