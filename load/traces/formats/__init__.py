"""Trace files: decompression, tables, checked columns, and one reader per public format."""
