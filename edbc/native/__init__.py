"""What native code stands on: compiled functions and their files, memory by address, buffers, threads.

In: Python functions, LLVM's text, tensors. Out: native functions, kept on disk; numbers and buffers that they read.
Must not know graphs, cells, plans or policies: whoever has a loop to run brings it along.
"""
