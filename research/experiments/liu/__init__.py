"""Experiments after Liu 2025, chapter 6: liu-simple, liu-wins, liu-grid."""
