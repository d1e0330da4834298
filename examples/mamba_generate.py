"""Continue a text with a Mamba language model: an ordinary transformers script, random weights, no downloads.

python examples/mamba_generate.py
python examples/mamba_generate.py --prompt-len 512 --new-tokens 24 --seed 7
"""

import argparse
import string

import torch
from transformers import MambaConfig, MambaForCausalLM

ALPHABET = string.ascii_lowercase + string.ascii_uppercase + string.digits + " ."


def build_model(seed: int) -> MambaForCausalLM:
    torch.manual_seed(seed)
    config = MambaConfig(
        vocab_size=len(ALPHABET),
        hidden_size=384,
        num_hidden_layers=8,
        state_size=16,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=len(ALPHABET) - 2,
        tie_word_embeddings=False,
    )
    model = MambaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # as after training: no two channels are scaled alike
                parameter.mul_(1.0 + 0.2 * torch.randn_like(parameter))
        model.backbone.embeddings.weight.normal_(std=1.0)
        model.lm_head.weight.normal_(std=0.2)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Continue a text with a Mamba language model.")
    parser.add_argument("--prompt-len", type=int, default=384, help="characters of the prompt")
    parser.add_argument("--new-tokens", type=int, default=12, help="characters to generate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the prompt")
    arguments = parser.parse_args()
    if arguments.prompt_len < 1 or arguments.new_tokens < 1:
        parser.error("--prompt-len and --new-tokens have to be at least 1")

    model = build_model(arguments.seed)
    prompt = torch.randint(len(ALPHABET), (1, arguments.prompt_len))
    with torch.no_grad():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=arguments.new_tokens,
            do_sample=False,
        )
    letters = [ALPHABET[index] for index in output[0].tolist()]
    print("".join(letters[: arguments.prompt_len][-32:]), "->", "".join(letters[arguments.prompt_len :]))


if __name__ == "__main__":
    main()
