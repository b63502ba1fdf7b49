"""`wink completion`: the script that lets a shell complete what is typed after `wink`."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\b
bash: eval "$(wink completion bash)"                                 in ~/.bashrc
zsh:  eval "$(wink completion zsh)"                                  in ~/.zshrc
fish: wink completion fish > ~/.config/fish/completions/wink.fish
"""


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes wink in a shell."""
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root()
    click.echo(made(root.command, {}, "wink", "_WINK_COMPLETE").source())
