"""From S3 to disk: ranged reads against what boto3 offers, from a server that is no limit."""
