"""Expressions of models' files (chat templates, tokenizers), in processes that can be killed."""
