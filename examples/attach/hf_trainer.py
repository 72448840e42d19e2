"""A Trainer of Hugging Face transformers whose gradients are exchanged by Wiretune.

torchrun --nproc-per-node 2 examples/attach/hf_trainer.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from wiretune.transformers import AttachCallback  # wiretune


def main() -> None:
    torch.manual_seed(0)
    rows = [torch.arange(start, start + 16) % 64 for start in range(256)]  # counting
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=64, n_layer=1, n_head=2)
    arguments = TrainingArguments(
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,  # a memory goes with parameters that are used
        max_steps=8,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
    trainer.add_callback(AttachCallback(trainer, exchange={"kind": "powersgd", "rank": 4}))  # wiretune
    trainer.train()
    weights = torch.cat([each.detach().flatten() for each in trainer.model.parameters()])
    for entry in trainer.state.log_history[:-1]:
        print(f"rank {arguments.process_index}: loss {entry['loss']}")
    print(f"rank {arguments.process_index}: weights {weights.norm().item()}")


if __name__ == "__main__":
    main()
