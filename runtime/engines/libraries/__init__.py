"""Engines that are libraries of their own: ONNX, XGBoost, LightGBM, scikit-learn."""
