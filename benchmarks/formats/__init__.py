"""Small models of scikit-learn and XGBoost in a pod, beside KServe's own servers and MLServer."""
