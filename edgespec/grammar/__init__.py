"""What an answer must look like: JSON of a schema, a regular expression or a grammar, by llguidance."""
