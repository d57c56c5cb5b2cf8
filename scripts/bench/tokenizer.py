"""Writes a small tokenizer: byte-level BPE with no merges but the server's words as single tokens.

Clients that insist on a tokenizer then draw prompts of it and count what truthserver sent (render.rs: token i is a blank
and four letters that spell i).
"""
import json, os, sys
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<|bos|>", "<|eos|>"])
C, V = "bcdfghjklmnpqrstvwxz", "aeiou"
tokenizer.add_tokens([AddedToken(f" {C[i // 500]}{V[i // 100 % 5]}{C[i // 5 % 20]}{V[i % 5]}", normalized=False) for i in range(2048)])
tokenizer.save(f"{out}/tokenizer.json")
size = tokenizer.get_vocab_size()
json.dump({"model_type": "gpt2", "vocab_size": size, "n_positions": 1 << 20}, open(f"{out}/config.json", "w"))
json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>", "model_max_length": 1 << 20,
           "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"},
          open(f"{out}/tokenizer_config.json", "w"))
