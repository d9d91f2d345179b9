"""An artifact behind OpenAI's HTTP API. Needs the extra ``sglk[serve]``; loads no compiler."""
