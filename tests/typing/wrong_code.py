"""What users write by mistake: type checkers report each line that is marked, and no
other.
"""

import numpy as np

import hifigemm as hg

x = np.ones((3, 3))
plan = hg.make_plan(x, x)

hg.matmul(x)  # wrong
hg.matmul(x, "ab")  # wrong
hg.matmul(x, 2.0)  # wrong
hg.matmul(x, x, accuracy="fp16")  # wrong
hg.matmul(x, x, accuracy=[1e-3])  # wrong
hg.matmul(x, x, scheme="ozaki3")  # wrong
hg.matmul(x, x, scheme=hg.Ozaki1)  # wrong
hg.matmul(x, x, engine=1)  # wrong
hg.matmul(x, x, workspace="1 GiB")  # wrong
hg.matmul(x, x, plan="fp64")  # wrong
hg.matmul(x, x, out=[[0.0]])  # wrong
hg.matmul(x, x, return_report="yes")  # wrong
hg.matmul(x, x, acuracy=1e-3)  # wrong
hg.matmul(x, x, None, "correct")  # wrong
hg.gemm(x, x, alpha="2")  # wrong
hg.gemm(x, x, trans_a="t")  # wrong
hg.numpy.dot(x, x, acuracy=1e-3)  # wrong
hg.numpy.dot(x, "ab")  # wrong
hg.numpy.einsum("ij,jk", x, x, accuracy="fp16")  # wrong
hg.numpy.tensordot(x, x, axes="ab")  # wrong
hg.numpy.matrix_power(x, 2.0)  # wrong
hg.numpy.herk(x, "T")  # wrong
size = hg.numpy.syrk(x, return_report=True).shape  # wrong
hg.numpy.sum(x)  # wrong
hg.make_plan(x, x, scheme="fp64")  # wrong
hg.make_plan(x, x, return_report=True)  # wrong
hg.prepare(x, "middle", plan=plan)  # wrong
hg.prepare(x, "left", accuracy="corect")  # wrong
hg.linalg.solve(x, x, accuracy=1e-8)  # wrong
hg.linalg.solve(x)  # wrong
hg.linalg.solve(x, x, return_report="yes")  # wrong
hg.Native("fp16")  # wrong
hg.Multiword("int8")  # wrong
hg.Multiword(accumulate="outside")  # wrong
hg.Multiword(split_rounding="up")  # wrong
hg.Corrected(product="bf16")  # wrong
hg.Corrected(scale="on")  # wrong
hg.Ozaki1(mode="fp64")  # wrong
hg.Ozaki1(product="fp8")  # wrong
hg.Ozaki2(scaling="slow")  # wrong
hg.Ozaki2(num_moduli=14.0)  # wrong
hg.strict("on")  # wrong
plan.k_block = 1  # wrong
shape = hg.matmul(x, x, return_report=True).shape  # wrong
c: str = hg.matmul(x, x)  # wrong
hg.matmul(x, x, sync=False)  # wrong
hg.matmul(x, x, accuracy=1, scheme="auto")
