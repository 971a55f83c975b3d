"""The decoding step of language models on a GPU, captured as CUDA graphs.

- `stepper`: sequences in slots with the interface of `slots.SlotStepper`.
- `decode`: a decoder over packed tokens: prompts and next tokens of any number of sequences in one pass.
- `kernels`: attention over the cache and rotary positions in Triton.

All other models use `slots.SlotStepper` and their own forward pass.
"""
