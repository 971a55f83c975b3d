"""The decoding step of language models on a GPU, captured as CUDA graphs.

- `stepper`: sequences in slots with the interface of `slots.SlotStepper`.
- `decode`: the Llama architecture for packed tokens: prompts and next tokens of any number of sequences in one pass.
- `kernels`: attention over the cache, rotary positions and SwiGLU in Triton.

All other models use `slots.SlotStepper` and their own forward pass.
"""
