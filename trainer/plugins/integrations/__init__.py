"""Other libraries' trainers under the kit: each stops, saves and resumes whole.

A module of a library's name needs that library and torch only; it imports nothing else of the
trainer. `docs/integrations.md` has how to use them, and what each library's own resume loses.

- transformers: a callback of Hugging Face's Trainer.
- lightning: a callback of Lightning's Trainer.
- fabric: for a loop of one's own with Lightning's Fabric.
- accelerate: for a loop of one's own with accelerate.
- keeper: when to save and to stop, random generators, the position in the data.
- batches: the batches of each epoch, from any position on.
- whole: checkpoints with check sums, of which a damaged one is put aside.
- kit_stop: the file that scripts copy, `configs/examples/kit_stop.py`.
"""
