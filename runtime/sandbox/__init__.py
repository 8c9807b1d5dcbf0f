"""Code of models' files (templates, tokenizers, pickles), in processes that can be killed."""
