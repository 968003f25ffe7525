# SPDX-License-Identifier: Apache-2.0
# Made from client/ctl/commands.c by config/generate.sh
_zipcclctl() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} second='' options=''
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W 'status stats decisions top flight events jobs config doctor log reload drain analyze bench simulate --help --version' -- "$word")
        return
    fi
    case $command in
    config) second=' show check' ;;
    log) second=' level' ;;
    drain) second=' node job' ;;
    bench) second=' codec collective' ;;
    esac
    if [ -n "$second" ]; then
        if [ "$COMP_CWORD" = 2 ]; then
            mapfile -t COMPREPLY < <(compgen -W "$second" -- "$word")
            return
        fi
        command="$command ${COMP_WORDS[2]}"
    fi
    case $command in
    'status') options='--socket --json --help' ;;
    'stats') options='--socket --job --explain --json --help' ;;
    'decisions') options='--socket --job --json --help' ;;
    'top') options='--socket --interval --sort --once --json --help' ;;
    'flight') options='--socket --last --json --help' ;;
    'events') options='--socket --follow --after --json --help' ;;
    'jobs') options='--socket --json --help' ;;
    'config show') options='--socket --json --help' ;;
    'config check') options='--json --help' ;;
    'doctor') options='--socket --json --help' ;;
    'log level') options='--socket --json --help' ;;
    'reload') options='--socket --json --help' ;;
    'drain node') options='--socket --timeout --cancel --json --help' ;;
    'drain job') options='--socket --timeout --cancel --json --help' ;;
    'analyze') options='--dtype --link-gbps --json --help' ;;
    'bench codec') options='--size --device --codec --isa --dtype --min-time --no-peers --json --help' ;;
    'bench collective') options='--op --nodes --ranks-per-node --size --link-rate --dtype --file --codec --redop --arm --rows --phases --imbalance --peer --switcher --iters --warmup --set --timeout --json --help' ;;
    'simulate') options='--op --nodes --ranks-per-node --size --dtype --arm --codec --root --link-gbps --intra-gbps --reduce-gbps --codec-gbps --encode-gbps --decode-gbps --ratio --workers --latency-us --overhead-us --gap-us --step-us --chunk --window --phases --imbalance --late --plot --json --help' ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _zipcclctl zipcclctl
